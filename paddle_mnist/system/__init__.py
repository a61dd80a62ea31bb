"""What the package needs of the machine: safe files, signals, heartbeats, devices and CPUs."""
