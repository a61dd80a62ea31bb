"""The machine: files, locks, remote folders, signals, heartbeat, supervisor, devices, CPUs."""
