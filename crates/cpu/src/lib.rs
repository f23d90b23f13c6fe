//! The CPU backend of bimetal: the default device and the numerical oracle.
