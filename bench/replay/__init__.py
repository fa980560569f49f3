"""The replay side by side with what people use today."""
