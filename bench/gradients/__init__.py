"""Gradients on their way to the chief, beside what people use today."""
