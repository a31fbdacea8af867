"""The figures of the event streams, each measured on real processes; scaled down they are tests of the suite."""
