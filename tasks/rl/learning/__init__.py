"""What is read of trainings: their curves and claims about them, and the time that an update takes."""
