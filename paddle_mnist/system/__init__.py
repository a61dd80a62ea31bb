"""The machine: files written safely, signals, heartbeat and supervisor, devices and CPUs."""
