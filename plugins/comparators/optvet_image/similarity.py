"""PSNR, SSIM and differences of two images."""

from __future__ import annotations

import math

import numpy as np

SIGMA = 1.5
RADIUS = 5
K1, K2 = 0.01, 0.03
"""Constants of SSIM: a Gaussian window of 11 by 11 pixels, and the two stabilizers."""


def image_metrics(reference: np.ndarray, candidate: np.ndarray, span: float) -> dict[str, float]:
    """Metrics of two images [channels, height, width] whose black and white are ``span`` apart.

    Returns:
        ``psnr_db`` (infinite for equal images), ``ssim``, ``rmse`` in units of the output,
        ``max_levels``, the largest difference in 256ths of the range, and ``nonfinite``, the share
        of values that are NaN or infinite on one side only or differently so; where there is one,
        PSNR is minus infinity and SSIM 0.
    """
    same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
    nonfinite = ~same & ~(np.isfinite(reference) & np.isfinite(candidate))
    if nonfinite.any():
        share = float(nonfinite.mean())
        worst = {"rmse": math.inf, "max_levels": math.inf, "nonfinite": share}
        return {"psnr_db": -math.inf, "ssim": 0.0, **worst}
    known = np.isfinite(reference)
    a, b = np.where(known, reference, 0.0), np.where(known, candidate, 0.0)
    with np.errstate(over="ignore"):
        # Quarters, since the difference of two finite numbers need not be one.
        shares = np.abs(a / 4 - b / 4) / (span / 4)
        error = float(np.sqrt(np.mean(shares**2)))
    return {
        "psnr_db": psnr_db(error, 1.0),
        "ssim": float(np.mean([ssim(x, y, span) for x, y in zip(a, b, strict=True)])),
        "rmse": error * span,
        "max_levels": float(shares.max(initial=0.0)) * 255,
        "nonfinite": 0.0,
    }


def psnr_db(rmse: float, span: float) -> float:
    """Peak signal-to-noise ratio, 20 log10(span / rmse), in decibels; minus infinity is possible.

    Source: Huynh-Thu, Ghanbari 2008, "Scope of validity of PSNR in image/video quality
    assessment", Electronics Letters 44 (13), equation 1.
    """
    if rmse == 0 or math.isinf(rmse):
        return -math.inf if rmse else math.inf
    return 20 * (math.log10(span) - math.log10(rmse))


def ssim(x: np.ndarray, y: np.ndarray, span: float) -> float:
    """Mean structural similarity of two planes [height, width]; from -1 to 1, 1 if they are equal.

    (2 mx my + C1) (2 sxy + C2) / ((mx² + my² + C1) (sx² + sy² + C2)), with means and (co)variances
    weighted by a Gaussian of 11 by 11 pixels with sigma 1.5, C1 = (0.01 span)², C2 = (0.03 span)².
    Averaged over the windows that lie inside the image; where none does, over all, mirrored at
    the border.

    Source: Wang, Bovik, Sheikh, Simoncelli 2004, "Image quality assessment: from error visibility
    to structural similarity", IEEE Transactions on Image Processing 13 (4), equation 13; as
    scikit-image's ``structural_similarity(gaussian_weights=True, sigma=1.5,
    use_sample_covariance=False)``.
    """
    if np.array_equal(x, y):
        return 1.0
    # In units of the range: squares of large values must not overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        value = _mean_ssim(x / span, y / span)
    # Beyond all numbers there is no structure left.
    return value if math.isfinite(value) else 0.0


def _mean_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """``ssim`` of planes whose black and white are 1 apart."""
    from scipy.ndimage import gaussian_filter

    def blurred(plane: np.ndarray) -> np.ndarray:
        return np.asarray(gaussian_filter(plane, SIGMA, radius=RADIUS, mode="reflect"))

    mx, my = blurred(x), blurred(y)
    sxx, syy = blurred(x * x) - mx * mx, blurred(y * y) - my * my
    sxy = blurred(x * y) - mx * my
    c1, c2 = K1**2, K2**2
    values = (2 * mx * my + c1) * (2 * sxy + c2) / ((mx**2 + my**2 + c1) * (sxx + syy + c2))
    if min(values.shape) > 2 * RADIUS:
        values = values[RADIUS:-RADIUS, RADIUS:-RADIUS]
    return float(values.mean())
