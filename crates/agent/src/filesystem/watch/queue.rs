//! Between the kernel's events and a client that may be slow: bounded, oldest dropped,
//! and never silently. While they wait, repetitions are told once: a file written a
//! thousand times between two looks was written.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Budget, Change, Event, MAX_QUEUED_BYTES, take};
use crate::filesystem::fault::FileError;

/// Events one client may leave waiting.
pub(crate) const MAX_EVENTS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
    closed: AtomicBool,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// How many events went before the first in `events`.
    gone: u64,
    /// The last waiting event of each name: what it is, and how many went before it.
    last: HashMap<String, (Change, u64)>,
    /// Events were dropped since the client was last told.
    lost: bool,
    ended: bool,
}

impl State {
    /// The last event that waits of this name, when it says the same.
    fn same(&mut self, event: &Event) -> Option<&mut Event> {
        let (change, at) = self.last.get(&event.name)?;
        let index = usize::try_from(at.wrapping_sub(self.gone)).ok()?;
        (*change == event.change)
            .then(|| self.events.get_mut(index))
            .flatten()
    }

    fn push(&mut self, event: Event) {
        let waiting = u64::try_from(self.events.len()).unwrap_or(u64::MAX);
        let at = self.gone.wrapping_add(waiting);
        self.last.insert(event.name.clone(), (event.change, at));
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if self
            .last
            .get(&event.name)
            .is_some_and(|(_, at)| *at == self.gone)
        {
            self.last.remove(&event.name);
        }
        self.gone = self.gone.wrapping_add(1);
        Some(event)
    }
}

/// What a waiting client gets.
#[derive(Debug)]
pub(crate) enum Next {
    Event(Box<Event>),
    /// Some events were dropped. Told once.
    Lost,
    /// The watched directory is gone.
    Ended,
}

impl Queue {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            closed: AtomicBool::new(false),
            budget,
        }
    }

    pub(crate) fn push(&self, event: Event) {
        let mut state = self.lock();
        if let Some(waiting) = state.same(&event) {
            self.renew(waiting, event);
            return;
        }
        if state.events.len() == MAX_EVENTS {
            self.drop_oldest(&mut state);
        }
        let bytes = bytes(&event);
        while !take(&self.budget.queued_bytes, bytes, MAX_QUEUED_BYTES) {
            // Others may hold all of the bytes: then it is this event that is lost.
            if !self.drop_oldest(&mut state) {
                state.lost = true;
                drop(state);
                self.changed.notify_one();
                return;
            }
        }
        state.push(event);
        drop(state);
        self.changed.notify_one();
    }

    /// Makes a waiting event say how the file looks now.
    fn renew(&self, waiting: &mut Event, event: Event) {
        let (before, after) = (bytes(waiting), bytes(&event));
        let more = after.saturating_sub(before);
        // Without room for the longer one, the older entry has to do.
        if take(&self.budget.queued_bytes, more, MAX_QUEUED_BYTES) {
            let less = before.saturating_sub(after);
            self.budget.queued_bytes.fetch_sub(less, Ordering::Relaxed);
            *waiting = event;
        }
    }

    fn drop_oldest(&self, state: &mut State) -> bool {
        let Some(event) = state.pop() else {
            return false;
        };
        self.release(&event);
        state.lost = true;
        true
    }

    fn release(&self, event: &Event) {
        self.budget
            .queued_bytes
            .fetch_sub(bytes(event), Ordering::Relaxed);
    }

    /// Says that the kernel dropped events.
    pub(crate) fn lose(&self) {
        self.lock().lost = true;
        self.changed.notify_one();
    }

    /// Says that no more events will come.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Says that nobody listens any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) async fn next(&self) -> Next {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if state.lost {
                    state.lost = false;
                    return Next::Lost;
                }
                if let Some(event) = state.pop() {
                    self.release(&event);
                    return Next::Event(Box::new(event));
                }
                if state.ended {
                    return Next::Ended;
                }
            }
            changed.await;
        }
    }

    pub(crate) fn drain(&self) -> Result<Vec<Event>, FileError> {
        let mut state = self.lock();
        if std::mem::take(&mut state.lost) {
            return Err(lost());
        }
        let events: Vec<Event> = std::iter::from_fn(|| state.pop()).collect();
        drop(state);
        for event in &events {
            self.release(event);
        }
        Ok(events)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let events = std::mem::take(&mut self.lock().events);
        for event in &events {
            self.release(event);
        }
    }
}

/// What a client is told after events were dropped.
pub(crate) fn lost() -> FileError {
    FileError::Exhausted(format!(
        "watcher overflow: events came faster than they were read and the oldest were dropped (limit: {MAX_EVENTS} waiting events)"
    ))
}

fn bytes(event: &Event) -> usize {
    let entry = event.entry.as_ref().map_or(0, |entry| {
        512 + entry.path.len()
            + entry.name.len()
            + entry
                .metadata
                .iter()
                .map(|(key, value)| key.len() + value.len() + 64)
                .sum::<usize>()
    });
    // The name is held twice: see `State::last`.
    192 + 2 * event.name.len() + entry
}

#[cfg(test)]
mod tests {
    use super::super::Change;
    use super::*;

    fn event(name: impl Into<String>) -> Event {
        Event {
            name: name.into(),
            change: Change::Create,
            entry: None,
        }
    }

    #[test]
    fn oldest_go_and_the_client_is_told_once() {
        let budget = Arc::new(Budget::default());
        let queue = Queue::new(Arc::clone(&budget));
        for number in 0..MAX_EVENTS + 3 {
            queue.push(event(number.to_string()));
        }
        assert!(matches!(queue.drain(), Err(FileError::Exhausted(_))));
        let events = queue.drain().unwrap();
        assert_eq!((events.len(), &*events[0].name), (MAX_EVENTS, "3"));
        assert!(queue.drain().unwrap().is_empty());
        assert_eq!(budget.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bytes_of_all_queues_are_bounded() {
        let budget = Arc::new(Budget::default());
        let queues: Vec<Queue> = (0..20).map(|_| Queue::new(Arc::clone(&budget))).collect();
        for queue in &queues {
            for number in 0..MAX_EVENTS {
                queue.push(event(format!("{number}{}", "n".repeat(2000))));
            }
        }
        assert!(budget.queued_bytes.load(Ordering::Relaxed) <= MAX_QUEUED_BYTES);
        let told = queues.iter().filter(|queue| queue.drain().is_err()).count();
        assert!(told >= 16, "{told}");
        drop(queues);
        assert_eq!(budget.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn repetitions_are_told_once() {
        let queue = Queue::new(Arc::default());
        let push = |name: &str, change| {
            queue.push(Event {
                change,
                ..event(name)
            });
        };
        for _ in 0..100_000 {
            push("a", Change::Write);
            push("b", Change::Write);
        }
        push("a", Change::Remove);
        push("a", Change::Write);
        queue.push(Event {
            change: Change::Chmod,
            ..event("b")
        });
        let shown = |events: Vec<Event>| {
            let texts = events
                .iter()
                .map(|event| format!("{} {:?}", event.name, event.change));
            texts.collect::<Vec<_>>()
        };
        assert_eq!(
            shown(queue.drain().unwrap()),
            ["a Write", "b Write", "a Remove", "a Write", "b Chmod"]
        );
        // What was told is told again when it happens again.
        push("a", Change::Write);
        assert_eq!(shown(queue.drain().unwrap()), ["a Write"]);
        assert!(queue.lock().last.is_empty());
        // An entry is the newest one.
        for size in [1, 1000, 7] {
            queue.push(Event {
                entry: Some(entry(size)),
                ..event("c")
            });
        }
        let events = queue.drain().unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].entry.as_ref().unwrap().size, 7);
        assert_eq!(queue.budget.queued_bytes.load(Ordering::Relaxed), 0);
    }

    fn entry(size: i64) -> crate::filesystem::entry::Entry {
        crate::filesystem::entry::Entry {
            name: "c".into(),
            kind: crate::filesystem::entry::Kind::File,
            path: "/".repeat(usize::try_from(size).unwrap()),
            size,
            mode: 0,
            permissions: String::new(),
            owner: String::new(),
            group: String::new(),
            modified: (0, 0),
            symlink_target: None,
            is_symlink: false,
            metadata: std::collections::BTreeMap::new(),
        }
    }

    #[tokio::test]
    async fn a_waiting_client_wakes() {
        let queue = Arc::new(Queue::new(Arc::default()));
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.push(event("a"));
        assert!(matches!(waiting.await.unwrap(), Next::Event(event) if event.name == "a"));
        queue.lose();
        assert!(matches!(queue.next().await, Next::Lost));
        queue.end();
        assert!(matches!(queue.next().await, Next::Ended));
    }
}
