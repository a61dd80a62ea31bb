"""CosineAnnealingWarmRestarts' state_dict lacks its position between two restarts."""

import paddle

schedule, other = (
    paddle.optimizer.lr.CosineAnnealingWarmRestarts(0.1, T_0=3, T_mult=2) for _ in range(2)
)
for _ in range(4):
    schedule.step()
other.set_state_dict(schedule.state_dict())
for _ in range(3):
    schedule.step()
    other.step()
assert schedule.get_lr() == other.get_lr()
