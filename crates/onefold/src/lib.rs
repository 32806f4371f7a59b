//! The one binary of onefold: command line and daemon.
