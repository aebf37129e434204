"""Learning curves of trainings, claims about them, and the time that an update takes."""
