"""The figures of the approval protocol, each measured on real processes; scaled down they are tests of the suite."""
