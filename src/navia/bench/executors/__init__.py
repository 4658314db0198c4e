"""How `navia bench` runs its cells: one after another, or on a Ray cluster."""
