"""The test kit `rmq.testing`: its processes, its faults, its fixtures."""
