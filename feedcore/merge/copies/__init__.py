"""Equal copies of packets: that they do not differ, and that there are two of them."""
