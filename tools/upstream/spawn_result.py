"""paddle.distributed.spawn hangs if its function returns a large result."""

import paddle.distributed as dist


def large():
    return bytes(10**6)


if __name__ == "__main__":
    context = dist.spawn(large, nprocs=1, join=False, backend="gloo")
    context.processes[0].join(20)
    print("still there" if context.processes[0].is_alive() else "fixed")
    context.processes[0].kill()
