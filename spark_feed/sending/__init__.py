"""The source gateway: sends the packets of the source journal, paced, and fills the gaps of adapters."""
