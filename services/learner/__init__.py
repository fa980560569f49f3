"""The learner: trains on the replay's batches and publishes parameters."""
