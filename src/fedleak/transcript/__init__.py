"""A transcript on disk: a folder with manifest.json and one safetensors file a round. Nothing is ever unpickled."""

from fedleak.transcript.read import load_transcript
from fedleak.transcript.write import TranscriptWriter, save_transcript

__all__ = ["TranscriptWriter", "load_transcript", "save_transcript"]
