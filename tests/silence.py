"""Check that an ordinary training is silent: it neither warns nor logs a warning."""

import contextlib
import logging
import warnings

# Paddle's own warnings about BatchNorm, DataParallel and LookAhead.
PADDLE_SAYS = (
    "we now always track global mean",
    "return to single-card operation",
    "is executed through `append_op`",
)


@contextlib.contextmanager
def silent(*allowed):
    """Fail afterwards if there was a warning, or a line of a log of level WARNING or above.

    allowed: parts of those that there may be.
    """
    texts = []
    kept = logging.Handler(logging.WARNING)
    kept.emit = lambda record: texts.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("paddle_mnist", "paddle")]
    for logger in loggers:  # which do not propagate
        logger.addHandler(kept)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(kept)
    texts += [str(warning.message) for warning in warned]
    texts = [text for text in texts if not any(words in text for words in (*PADDLE_SAYS, *allowed))]
    assert not texts, texts
