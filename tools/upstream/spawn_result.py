"""paddle.distributed.spawn hangs if its function returns a large result."""

import signal

import paddle.distributed as dist


def large():
    return bytes(10**6)


if __name__ == "__main__":
    signal.alarm(60)  # ends a hang
    dist.spawn(large, nprocs=1, backend="gloo")
