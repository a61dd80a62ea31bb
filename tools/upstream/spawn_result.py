"""paddle.distributed.spawn hangs if its function returns a large result."""

import paddle.distributed as dist


def large():
    return bytes(10**6)


if __name__ == "__main__":
    (process,) = dist.spawn(large, nprocs=1, join=False, backend="gloo").processes
    process.join(20)
    process.kill()
    assert process.exitcode == 0
