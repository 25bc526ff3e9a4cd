"""What venues put around messages in datagrams: MoldUDP64, IEX-TP, MDP 3.0, or a header that a document describes."""
