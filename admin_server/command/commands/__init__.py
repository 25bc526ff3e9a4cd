"""The commands of `tandemfeed admin`."""
