"""What each command does, one file each. Imported by `fedleak.cli` only when the command runs, but for `options`."""
