//! `POST /init` and `GET /envs`: what the node tells the daemon after each start or restore.

use std::time::SystemTime;

use hyper::StatusCode;
use protocol::envd::InitRequest;
use protocol::timestamp;

use crate::clock;
use crate::daemon::{Control, Daemon};
use crate::reply::{self, Reply};
use crate::request::{self, Request};

/// Longest `/init` body; environments are at most what the kernel takes for one program.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Handles `POST /init`. Doing it again with the same body changes nothing.
pub(crate) async fn init(daemon: &Daemon, request: Request) -> Reply {
    let header_token = request::access_token(request.headers()).map(str::to_owned);
    let body = match request::read_body(request.into_body(), BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return error.into(),
    };
    let message: InitRequest = match serde_json::from_slice(if body.is_empty() { b"{}" } else { &body }) {
        Ok(message) => message,
        Err(error) => {
            return reply::error(StatusCode::BAD_REQUEST, format!("body of /init is not valid: {error}"));
        }
    };
    let time = match message.timestamp.as_deref().filter(|text| !text.is_empty()).map(timestamp::parse) {
        Some(None) => return reply::error(StatusCode::BAD_REQUEST, "timestamp of /init is not RFC 3339"),
        Some(Some(time)) => Some(time),
        None => None,
    };
    let mut control = daemon.control();
    if !authorised(&control, header_token.as_deref(), message.access_token.as_deref()) {
        return reply::error(StatusCode::UNAUTHORIZED, "the access token is not the one this sandbox has");
    }
    // A repeated request that was delayed must not undo what a later one set.
    let is_stale = matches!((time, control.last_timestamp), (Some(time), Some(last)) if time < last);
    if !is_stale {
        let mut next = control.clone();
        apply(&mut next, message, time);
        // Remembered before it is answered: a daemon that is started again must not believe less than the node does.
        if let Some(memory) = &daemon.memory
            && let Err(error) = memory.remember(&next)
        {
            let reason = format!("the daemon cannot remember what it was told: {error}");
            return reply::error(StatusCode::INTERNAL_SERVER_ERROR, reason);
        }
        *control = next;
    }
    drop(control);
    if let Some(time) = time.filter(|_| !is_stale && !daemon.options.keep_clock) {
        correct_clock(time);
    }
    write_markers(daemon);
    reply::empty(StatusCode::NO_CONTENT)
}

/// The first request is believed: until then no program of the user runs that could send it. Later ones prove that
/// they know the token, in the header or by repeating it.
fn authorised(control: &Control, header: Option<&str>, body: Option<&str>) -> bool {
    let Some(token) = &control.token else { return true };
    [header, body].into_iter().flatten().any(|given| request::same_secret(token, given))
}

fn apply(control: &mut Control, message: InitRequest, time: Option<SystemTime>) {
    control.initialised = true;
    control.last_timestamp = time.or(control.last_timestamp);
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    if let Some(environment) = message.env_vars {
        control.environment = environment;
    }
    if let Some(token) = given(message.access_token) {
        control.token = Some(token);
    }
    if let Some(user) = given(message.default_user) {
        control.default_user = Some(user);
    }
    if let Some(workdir) = given(message.default_workdir) {
        control.default_workdir = Some(workdir);
    }
    if let Some(id) = given(message.sandbox_id) {
        control.sandbox_id = Some(id);
    }
    if let Some(id) = given(message.template_id) {
        control.template_id = Some(id);
    }
}

fn correct_clock(time: SystemTime) {
    if clock::needs_setting(SystemTime::now(), time)
        && let Err(error) = clock::set(time)
    {
        eprintln!("aenv-envd: clock not set: {error}");
    }
}

/// Files that tell programs started by others (services, log-in shells) what commands learn from their environment.
/// Not being able to write them harms nobody else.
fn write_markers(daemon: &Daemon) {
    let directory = &daemon.options.markers;
    if std::fs::create_dir_all(directory).is_err() {
        return;
    }
    for (name, value) in daemon.sandbox_variables() {
        let path = directory.join(format!(".{name}"));
        if std::fs::read(&path).ok().as_deref() != Some(value.as_bytes()) {
            let _ = std::fs::write(path, value);
        }
    }
}

/// `GET /envs`: the environment of every command.
pub(crate) fn environment(daemon: &Daemon) -> Reply {
    reply::json(StatusCode::OK, &daemon.control().environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_absent_leave_the_state_and_environments_are_replaced() {
        let mut control = Control::default();
        let read = |text| serde_json::from_str::<InitRequest>(text).unwrap();
        apply(&mut control, read(r#"{"envVars":{"A":"1"},"accessToken":"t","defaultUser":"u"}"#), None);
        apply(&mut control, read(r#"{"envVars":{"B":"2"},"defaultUser":""}"#), None);
        assert_eq!(control.environment.keys().collect::<Vec<_>>(), ["B"]);
        assert_eq!((control.token.as_deref(), control.default_user.as_deref()), (Some("t"), Some("u")));
        apply(&mut control, read("{}"), None);
        assert_eq!(control.environment.len(), 1);
    }

    #[test]
    fn once_a_token_is_set_only_who_knows_it_is_authorised() {
        let open = Control::default();
        assert!(authorised(&open, None, None) && authorised(&open, None, Some("new")));
        let closed = Control { token: Some("secret".into()), ..Control::default() };
        assert!(authorised(&closed, None, Some("secret")));
        assert!(authorised(&closed, Some("secret"), Some("new")));
        for (header, body) in
            [(None, None), (None, Some("other")), (Some(""), Some("")), (Some("secre"), None)]
        {
            assert!(!authorised(&closed, header, body), "{header:?} {body:?}");
        }
    }
}
