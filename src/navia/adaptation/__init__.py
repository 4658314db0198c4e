"""The loop around a method: adapter, guard, source statistics, saved deltas."""
