"""Reads the digits in pictures: photographs, drawings and pages. Needs OpenCV."""

from paddle_mnist.errors import DeviceError

try:
    import cv2
except ImportError as error:
    raise DeviceError(
        f"pictures are read with OpenCV, which cannot be imported ({error}); install it with "
        "pip install 'paddle_mnist[pictures]'"
    ) from error
else:
    cv2.setNumThreads(1)  # several pictures are read at once, by threads of our own

from paddle_mnist.mnist.pictures.reading import Reading, read_pictures

__all__ = ["Reading", "read_pictures"]
