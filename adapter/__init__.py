"""The feed adapter: converts source streams to one normalised output, as active or as backup.

`conversion` is pure, `feedcore.replica.engine` decides, and the modules here are the shell around both.
"""
