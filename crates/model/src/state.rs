//! The life of a sandbox: one enum, one pure `step`.
//!
//! `Creating -> Running -> Ending -> Ended`. Pause, resume and snapshot come with the issue
//! that builds them; they are not here as names without behaviour.

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Intent is stored; the node is building it.
    Creating,
    /// The agent answered; clients are served.
    Running,
    /// An end was decided; processes are being ended and resources given back.
    Ending,
    /// Nothing of it is left but its record and its reason.
    Ended,
}

/// What can happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The agent confirmed identity and answers.
    Started,
    /// An end was asked for (kill, timeout, down) or the start failed.
    End,
    /// The node gave back everything it held.
    Released,
    /// Its processes were found dead.
    Died,
}

/// The answer to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Go there.
    Move(State),
    /// Already so; nothing to do.
    Ignore,
    /// It cannot happen in this state.
    Refuse(&'static str),
}

impl State {
    /// The name stored and logged.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Ending => "ending",
            Self::Ended => "ended",
        }
    }

    /// Reads a stored name.
    pub fn from_str_opt(text: &str) -> Option<Self> {
        [Self::Creating, Self::Running, Self::Ending, Self::Ended]
            .into_iter()
            .find(|s| s.as_str() == text)
    }
}

/// The one place where a sandbox's state changes.
pub fn step(state: State, event: Event) -> Step {
    use Event as E;
    use State as S;
    match (state, event) {
        (S::Creating, E::Started) => Step::Move(S::Running),
        (S::Running, E::Started) => Step::Ignore,
        (S::Ending | S::Ended, E::Started) => Step::Refuse("it is being ended"),
        (S::Creating | S::Running, E::End | E::Died) => Step::Move(S::Ending),
        (S::Ending | S::Ended, E::End | E::Died) => Step::Ignore,
        (S::Ending, E::Released) => Step::Move(S::Ended),
        (S::Ended, E::Released) => Step::Ignore,
        (S::Creating | S::Running, E::Released) => Step::Refuse("nothing decided its end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVENTS: [Event; 4] = [Event::Started, Event::End, Event::Released, Event::Died];

    #[test]
    fn end_reaches_ended_in_two_steps_from_every_live_state() {
        for start in [State::Creating, State::Running] {
            assert_eq!(step(start, Event::End), Step::Move(State::Ending));
            assert_eq!(
                step(State::Ending, Event::Released),
                Step::Move(State::Ended)
            );
        }
    }

    #[test]
    fn names_round_trip() {
        for s in [State::Creating, State::Running, State::Ending, State::Ended] {
            assert_eq!(State::from_str_opt(s.as_str()), Some(s));
        }
    }

    proptest! {
        #[test]
        fn ended_absorbs_and_repeats_change_nothing(events in prop::collection::vec(0usize..4, 0..40)) {
            let mut state = State::Creating;
            let mut ended = false;
            for e in events {
                let event = EVENTS[e];
                if let Step::Move(to) = step(state, event) {
                    prop_assert!(!ended, "left the terminal state");
                    state = to;
                    // The same event again never moves further.
                    prop_assert!(!matches!(step(state, event), Step::Move(_)));
                }
                ended = state == State::Ended;
            }
        }
    }
}
