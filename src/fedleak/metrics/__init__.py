"""What a finding is worth: one number per example, matching, null baselines and honest intervals."""

from fedleak.metrics.classes import class_means
from fedleak.metrics.intervals import Interval, bootstrap_means, interval, paired_difference, share_interval
from fedleak.metrics.judge import Judged, judge, utility
from fedleak.metrics.judgement import Judgement
from fedleak.metrics.labels import label_errors, wrong_labels
from fedleak.metrics.match import Matching, match
from fedleak.metrics.nulls import NULLS, Guess, null_guesses
from fedleak.metrics.perceptual import load_lpips, lpips
from fedleak.metrics.pixel import mse, mse_pairs, psnr
from fedleak.metrics.registry import DEFAULT_METRICS, METRICS, Metric, NotAvailable, default_threshold, known_metrics
from fedleak.metrics.structure import ssim, ssim_pairs

__all__ = [
    "DEFAULT_METRICS",
    "METRICS",
    "NULLS",
    "Guess",
    "Interval",
    "Judged",
    "Judgement",
    "Matching",
    "Metric",
    "NotAvailable",
    "bootstrap_means",
    "class_means",
    "default_threshold",
    "interval",
    "judge",
    "known_metrics",
    "label_errors",
    "load_lpips",
    "lpips",
    "match",
    "mse",
    "mse_pairs",
    "null_guesses",
    "paired_difference",
    "psnr",
    "share_interval",
    "ssim",
    "ssim_pairs",
    "utility",
    "wrong_labels",
]
