//! Ranks talking: the Communicator and its backends
