"""A script that trains slowly, to be killed: OUTPUT OPTIONS [SECONDS A STEP], options as JSON."""

import json
import sys
import time

from fit_rows import bits, train

from paddle_mnist import Callback, is_rehearsal


class Pause(Callback):
    """Leaves uploads time, of which training steps take none."""

    def __init__(self, seconds):
        self._seconds = seconds

    def after_step(self, view):
        time.sleep(0 if is_rehearsal() else self._seconds)


if __name__ == "__main__":
    output, options, *seconds = sys.argv[1:]
    pause = Pause(float(seconds[0]) if seconds else 0.5)
    result = train("Adam", output, callbacks=[pause], **json.loads(options))
    print(json.dumps(bits(result)))
