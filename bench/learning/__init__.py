"""Does compressing gradients change what is learned? Whole training runs, arm against arm, over seeds."""
