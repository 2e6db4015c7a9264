//! Messages of `process.Process`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::connect::json::{
    ProtoEnum, append_base64, bytes_base64, enumeration, is_default, null_default, uint32,
};

/// A message without fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// What to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessConfig {
    /// Program: a path, or a name that is searched in `PATH`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub cmd: String,
    /// Its arguments, without the program's name.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub args: Vec<String>,
    /// Environment on top of the sandbox' own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_default")]
    pub envs: BTreeMap<String, String>,
    /// Working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PtySize {
    /// Columns.
    #[serde(skip_serializing_if = "is_default", with = "uint32")]
    pub cols: u32,
    /// Rows.
    #[serde(skip_serializing_if = "is_default", with = "uint32")]
    pub rows: u32,
}

/// A terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pty {
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

/// Starts a process; answered by a stream of [`EventMessage`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRequest {
    /// What to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessConfig>,
    /// Run it on a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name for [`ProcessSelector::Tag`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether standard input stays open for [`SendInputRequest`]; absent means yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessSelector {
    /// By process id.
    Pid(u32),
    /// By the tag given at its start.
    Tag(String),
}

/// The JSON form of [`ProcessSelector`]: one of two fields.
#[derive(Serialize, Deserialize)]
struct SelectorFields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<Pid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Pid(#[serde(with = "uint32")] u32);

impl Serialize for ProcessSelector {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Pid(pid) => SelectorFields { pid: Some(Pid(*pid)), tag: None },
            Self::Tag(tag) => SelectorFields { pid: None, tag: Some(tag.clone()) },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ProcessSelector {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match SelectorFields::deserialize(deserializer)? {
            SelectorFields { pid: Some(pid), tag: None } => Ok(Self::Pid(pid.0)),
            SelectorFields { pid: None, tag: Some(tag) } => Ok(Self::Tag(tag)),
            _ => Err(serde::de::Error::custom("a process is selected by either pid or tag")),
        }
    }
}

/// Asks for the running processes.
pub type ListRequest = Empty;

/// A running process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    /// What was asked to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ProcessConfig>,
    /// Process id in the guest.
    #[serde(skip_serializing_if = "is_default", with = "uint32")]
    pub pid: u32,
    /// The tag given at its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Answer to [`ListRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListResponse {
    /// In the order of their start.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub processes: Vec<ProcessInfo>,
}

macro_rules! selector_request {
    ($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $field_name:ident: $field_type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            /// Which process.
            pub process: ProcessSelector,
            $($(#[$field])* pub $field_name: $field_type,)*
        }
    };
}

selector_request!(
    /// Subscribes to a process' output from now on; answered by a stream of [`EventMessage`].
    ConnectRequest {}
);
selector_request!(
    /// Closes a process' standard input.
    CloseStdinRequest {}
);
selector_request!(
    /// Sends a signal to a process and its children.
    SendSignalRequest {
        /// Which signal.
        #[serde(default, with = "enumeration")]
        signal: Signal,
    }
);
selector_request!(
    /// Changes the size of a process' terminal.
    UpdateRequest {
        /// The new size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pty: Option<Pty>,
    }
);
selector_request!(
    /// Writes to a process' standard input or terminal.
    SendInputRequest {
        /// What to write.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<ProcessInput>,
    }
);

/// Signals a client can send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Signal {
    /// None.
    #[default]
    Unspecified,
    /// Asks to end.
    Terminate,
    /// Ends at once.
    Kill,
}

impl ProtoEnum for Signal {
    const VALUES: &'static [(Self, i32, &'static str)] = &[
        (Self::Unspecified, 0, "SIGNAL_UNSPECIFIED"),
        (Self::Terminate, 15, "SIGNAL_SIGTERM"),
        (Self::Kill, 9, "SIGNAL_SIGKILL"),
    ];
}

/// Bytes for a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInput {
    /// For a process with a pipe.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_bytes")]
    pub stdin: Option<Vec<u8>>,
    /// For a process with a terminal.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_bytes")]
    pub pty: Option<Vec<u8>>,
}

mod optional_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Bytes(#[serde(with = "super::bytes_base64")] Vec<u8>);

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => super::bytes_base64::serialize(bytes, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Bytes>::deserialize(deserializer)?.map(|bytes| bytes.0))
    }
}

/// One message of the streams that answer [`StartRequest`] and [`ConnectRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventMessage {
    /// What happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<ProcessEvent>,
}

/// What happened to a process. At most one field is set (a protocol-buffer `oneof`); none for kinds we do not know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessEvent {
    /// First event of each stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartEvent>,
    /// Output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Output>,
    /// Last event of each stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndEvent>,
    /// Nothing happened for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Empty>,
}

/// The process runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartEvent {
    /// Process id in the guest.
    #[serde(skip_serializing_if = "is_default", with = "uint32")]
    pub pid: u32,
}

/// Output of a process. One field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Output {
    /// From standard output.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_bytes")]
    pub stdout: Option<Vec<u8>>,
    /// From standard error.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_bytes")]
    pub stderr: Option<Vec<u8>>,
    /// From the terminal.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_bytes")]
    pub pty: Option<Vec<u8>>,
}

/// The process has ended and all its output was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndEvent {
    /// Exit code; −1 when a signal ended it. Sent even when it is 0, which proto3 JSON would leave out: some clients
    /// rely on it.
    #[serde(alias = "exit_code", deserialize_with = "null_default")]
    pub exit_code: i32,
    /// Whether it exited by itself.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub exited: bool,
    /// The same in words: `exit status 1`, `signal: killed`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "null_default")]
    pub status: String,
    /// What went wrong, when something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Appends the JSON of an [`EventMessage`] with output to `json`. This is the hot path of every stream, so it goes
/// without intermediate values. `field` is `stdout`, `stderr` or `pty`.
pub fn append_output_event(field: &str, bytes: &[u8], json: &mut Vec<u8>) {
    json.extend_from_slice(br#"{"event":{"data":{""#);
    json.extend_from_slice(field.as_bytes());
    json.extend_from_slice(br#"":""#);
    append_base64(bytes, json);
    json.extend_from_slice(br#""}}}"#);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_start_request_as_clients_send_it() {
        let text = r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","true"],"envs":{},"cwd":null},"stdin":false,"new":1}"#;
        let request: StartRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.process.unwrap().args, ["-l", "-c", "true"]);
        assert_eq!(request.stdin, Some(false));
    }

    #[test]
    fn a_selector_is_exactly_one_of_pid_and_tag() {
        let read = |text| serde_json::from_str::<ConnectRequest>(text).map(|request| request.process);
        assert_eq!(read(r#"{"process":{"pid":5}}"#).unwrap(), ProcessSelector::Pid(5));
        assert_eq!(read(r#"{"process":{"pid":"5","x":1}}"#).unwrap(), ProcessSelector::Pid(5));
        assert_eq!(read(r#"{"process":{"tag":"t"}}"#).unwrap(), ProcessSelector::Tag("t".into()));
        for wrong in
            [r#"{"process":{}}"#, r#"{"process":{"pid":1,"tag":"t"}}"#, "{}", r#"{"process":{"pid":-1}}"#]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let written = serde_json::to_string(&ConnectRequest { process: ProcessSelector::Pid(5) }).unwrap();
        assert_eq!(written, r#"{"process":{"pid":5}}"#);
    }

    #[test]
    fn signals_come_by_name_or_number() {
        for text in [r#""SIGNAL_SIGKILL""#, "9"] {
            let request: SendSignalRequest =
                serde_json::from_str(&format!(r#"{{"process":{{"pid":1}},"signal":{text}}}"#)).unwrap();
            assert_eq!(request.signal, Signal::Kill);
        }
    }

    #[test]
    fn an_exit_code_of_zero_is_sent() {
        let end = EndEvent { exited: true, status: "exit status 0".into(), ..EndEvent::default() };
        let message =
            EventMessage { event: Some(ProcessEvent { end: Some(end), ..ProcessEvent::default() }) };
        assert_eq!(
            serde_json::to_string(&message).unwrap(),
            r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#
        );
    }

    #[test]
    fn events_we_do_not_know_are_empty() {
        let message: EventMessage = serde_json::from_str(r#"{"event":{"later":{"a":1}}}"#).unwrap();
        assert_eq!(message.event, Some(ProcessEvent::default()));
    }

    proptest! {
        #[test]
        fn the_fast_output_event_reads_like_the_slow_one(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut json = Vec::new();
            append_output_event("stderr", &bytes, &mut json);
            let output = Output { stderr: Some(bytes), ..Output::default() };
            let message = EventMessage { event: Some(ProcessEvent { data: Some(output), ..ProcessEvent::default() }) };
            prop_assert_eq!(&json, &serde_json::to_vec(&message).unwrap());
            prop_assert_eq!(serde_json::from_slice::<EventMessage>(&json).unwrap(), message);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = serde_json::from_slice::<StartRequest>(&bytes);
            let _ = serde_json::from_slice::<SendInputRequest>(&bytes);
        }
    }
}
