"""Imports OpenCV, or says how to install it."""

from paddle_mnist.errors import DeviceError

try:
    import cv2
except ImportError as error:
    raise DeviceError(
        f"pictures are read with OpenCV, which cannot be imported ({error}); install it with "
        "pip install 'paddle_mnist[pictures]'"
    ) from error

__all__ = ["cv2"]

cv2.setNumThreads(1)  # several pictures are read at once, by threads of our own
