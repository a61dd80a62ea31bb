"""What the operating system offers this process: a share of the CPUs."""


def usable_cpus() -> int:
    """Count the CPUs that this process may use; at least 1.

    The least of the machine's logical CPUs, the process's affinity, the CPU quota of its container
    (cgroup v1 or v2; a fraction counts as a whole CPU, so that none of the quota lies idle), and
    the environment variable LOKY_MAX_CPU_COUNT.
    """
    from joblib import cpu_count  # here, because `--help` needs none of what this imports

    return cpu_count()
