"""A simulated world: disks, machines and processes that run the package from one seed."""
