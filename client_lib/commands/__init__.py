"""The commands: `tandemfeed subscribe`, `replay`, `snapshot`, `losses`, `stubs`."""
