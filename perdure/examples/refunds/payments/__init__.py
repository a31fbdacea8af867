"""A made-up payments service: a process of its own with a store of its own that keeps count of what was really done."""
