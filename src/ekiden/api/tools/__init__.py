"""Tool calls: how models write them, and how they are prompted for, parsed and constrained."""
