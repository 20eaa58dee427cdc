"""Tool calls: how models write them, how they are asked for, read back and guaranteed."""
