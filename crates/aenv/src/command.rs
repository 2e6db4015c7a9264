//! One module for each command that talks to a node or shows something.

pub(crate) mod auth;
pub(crate) mod cp;
pub(crate) mod exec;
pub(crate) mod layer;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod pull;
pub(crate) mod rm;
pub(crate) mod setup;
pub(crate) mod start;
pub(crate) mod template;
