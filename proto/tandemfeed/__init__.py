"""Contracts of the control plane, generated from proto/tandemfeed; never edited by hand."""
