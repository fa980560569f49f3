"""The run file: its models, and how files, environment and flags become one."""
