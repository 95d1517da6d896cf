"""A rank's side of a launch, without any framework."""
