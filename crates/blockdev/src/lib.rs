//! A stack of layers as something a program can open by path.
