//! What a process wrote: a bounded ring with absolute offsets, and the readers that follow
//! it. One buffer per process, however many readers there are.
//!
//! Whoever reads the pipes asks [`Output::room`] first. Without readers there is always
//! room, and the oldest output is forgotten. With readers nothing that one of them still
//! has to see is forgotten: the pipe is left full until the slowest has caught up, or has
//! stood still for [`STALL`] and is cut off.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::ending::Ending;

/// Largest piece of output read, kept and sent, in bytes (E2B's agent reads as much).
pub(crate) const PIECE: usize = 32 * 1024;
/// What is kept of one process, in bytes.
const RING: usize = 1024 * 1024;
/// The same while all processes together are over [`ALL_RINGS`].
const TIGHT_RING: usize = 64 * 1024;
/// What is kept of all processes together before each is held to less, in bytes.
const ALL_RINGS: usize = 64 * 1024 * 1024;
/// What a piece costs beside its bytes: many one-byte writes must not outgrow the ring.
const PIECE_COST: usize = 64;
/// How long a reader may stand still while the process waits for it.
pub(crate) const STALL: Duration = Duration::from_secs(30);

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Stdout,
    Stderr,
    Terminal,
}

/// Output kept of all processes together.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) fn is_tight(&self) -> bool {
        self.0.load(Ordering::Relaxed) > ALL_RINGS
    }
}

/// One process's output.
#[derive(Debug)]
pub(crate) struct Output {
    state: Mutex<State>,
    /// There is more to read, or it ended.
    more: Notify,
    /// A reader moved on or left.
    moved: Notify,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Piece>,
    cost: usize,
    /// Offset after the last byte.
    end: u64,
    readers: BTreeMap<u64, Position>,
    next_reader: u64,
    /// How it ended, and after which byte.
    ending: Option<(u64, Arc<Ending>)>,
}

#[derive(Debug)]
struct Piece {
    channel: Channel,
    start: u64,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + length(&self.bytes)
    }
}

#[derive(Debug)]
struct Position {
    at: u64,
    moved: Instant,
    cut: bool,
}

/// What a reader gets next.
#[derive(Debug)]
pub(crate) enum Event {
    Data(Channel, Vec<u8>),
    End(Arc<Ending>),
    /// The reader was too slow for too long; the process goes on without it.
    Cut,
}

/// What is kept, from some offset on.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Offset of the first byte of all that is kept; earlier output is forgotten.
    pub(crate) first: u64,
    /// Offset after the last byte.
    pub(crate) end: u64,
    pub(crate) pieces: Vec<(Channel, u64, Vec<u8>)>,
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl Output {
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            more: Notify::new(),
            moved: Notify::new(),
            budget,
        })
    }

    /// Waits until output may be read from the process. Cuts readers that hold it up too
    /// long.
    ///
    /// # Cancel safety
    /// Holds nothing across the wait.
    pub(crate) async fn room(&self) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            let patience = {
                let mut state = self.state();
                self.forget(&mut state);
                if state.cost < self.limit() {
                    return;
                }
                match state.cut_stalled() {
                    Some(next) => next,
                    None => {
                        // Somebody was cut; look again.
                        self.more.notify_waiters();
                        continue;
                    }
                }
            };
            // Either outcome means to look again.
            let _ = tokio::time::timeout_at(patience, moved).await;
        }
    }

    /// Adds what was read.
    pub(crate) fn push(&self, channel: Channel, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state();
        let start = state.end;
        state.end += length(bytes);
        let cost = match state.pieces.back_mut() {
            Some(last) if last.channel == channel && last.bytes.len() + bytes.len() <= PIECE => {
                last.bytes.extend_from_slice(bytes);
                bytes.len()
            }
            _ => {
                state.pieces.push_back(Piece {
                    channel,
                    start,
                    bytes: bytes.to_vec(),
                });
                bytes.len() + PIECE_COST
            }
        };
        state.cost += cost;
        self.budget.0.fetch_add(cost, Ordering::Relaxed);
        self.forget(&mut state);
        drop(state);
        self.more.notify_waiters();
    }

    /// Marks the end: readers get what is there now, then `ending`. Later output (of a
    /// process that outlived its parent) is only kept.
    pub(crate) fn finish(&self, ending: Arc<Ending>) {
        let mut state = self.state();
        if state.ending.is_none() {
            state.ending = Some((state.end, ending));
        }
        drop(state);
        self.more.notify_waiters();
    }

    pub(crate) fn ending(&self) -> Option<Arc<Ending>> {
        let state = self.state();
        state.ending.as_ref().map(|(_, ending)| Arc::clone(ending))
    }

    /// A reader of everything from now on.
    pub(crate) fn subscribe(self: &Arc<Self>) -> Reader {
        let mut state = self.state();
        let id = state.next_reader;
        state.next_reader += 1;
        let at = state.ending.as_ref().map_or(state.end, |(end, _)| *end);
        let position = Position {
            at,
            moved: Instant::now(),
            cut: false,
        };
        state.readers.insert(id, position);
        drop(state);
        Reader {
            output: Arc::clone(self),
            id,
        }
    }

    /// What is kept from `offset` on, at most `limit` bytes of it.
    pub(crate) fn kept(&self, offset: u64, limit: usize) -> Kept {
        let state = self.state();
        let mut left = limit;
        let mut pieces = Vec::new();
        for piece in state.pieces.iter().filter(|piece| piece.end() > offset) {
            if left == 0 {
                break;
            }
            let from = piece.start.max(offset);
            let bytes = piece.slice(from, left).to_vec();
            left -= bytes.len();
            pieces.push((piece.channel, from, bytes));
        }
        Kept {
            first: state.pieces.front().map_or(state.end, |piece| piece.start),
            end: state.end,
            pieces,
        }
    }

    /// Forgets everything that no reader waits for.
    pub(crate) fn discard(&self) {
        let mut state = self.state();
        let needed = state.needed();
        self.forget_until(&mut state, needed, 0);
    }

    fn limit(&self) -> usize {
        if self.budget.is_tight() {
            TIGHT_RING
        } else {
            RING
        }
    }

    fn forget(&self, state: &mut State) {
        let needed = state.needed();
        self.forget_until(state, needed, self.limit());
    }

    fn forget_until(&self, state: &mut State, needed: u64, limit: usize) {
        while state.cost >= limit {
            let Some(first) = state.pieces.front() else {
                break;
            };
            if first.end() > needed {
                break;
            }
            let cost = first.bytes.len() + PIECE_COST;
            state.cost = state.cost.saturating_sub(cost);
            self.budget.0.fetch_sub(cost, Ordering::Relaxed);
            state.pieces.pop_front();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let cost = self.state().cost;
        self.budget.0.fetch_sub(cost, Ordering::Relaxed);
    }
}

impl Piece {
    /// From offset `from`, which lies inside, at most `limit` bytes.
    fn slice(&self, from: u64, limit: usize) -> &[u8] {
        let skip = usize::try_from(from.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let rest = self.bytes.get(skip..).unwrap_or_default();
        rest.get(..limit).unwrap_or(rest)
    }
}

impl State {
    /// Offset after which readers read.
    fn last(&self) -> u64 {
        self.ending.as_ref().map_or(self.end, |(end, _)| *end)
    }

    /// Offset from which something is still waited for.
    fn needed(&self) -> u64 {
        let last = self.last();
        let waiting = self.readers.values().filter(|r| !r.cut && r.at < last);
        waiting.map(|r| r.at).min().unwrap_or(self.end)
    }

    /// Cuts the readers that need the oldest piece and stood still for [`STALL`]. Gives the
    /// moment at which the next one will have; none when some were cut.
    fn cut_stalled(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let oldest = self.pieces.front().map_or(self.end, Piece::end);
        let last = self.last();
        let mut next = now + STALL;
        let mut cut = false;
        for reader in self.readers.values_mut() {
            if reader.cut || reader.at >= last || reader.at >= oldest {
                continue;
            }
            let patience = reader.moved + STALL;
            if patience <= now {
                reader.cut = true;
                cut = true;
            } else {
                next = next.min(patience);
            }
        }
        if cut { None } else { Some(next) }
    }

    /// The piece that holds `offset`.
    fn piece(&self, offset: u64) -> Option<&Piece> {
        let after = self.pieces.partition_point(|piece| piece.end() <= offset);
        self.pieces.get(after)
    }
}

/// One follower of an [`Output`]. Dropping it lets the process go on without it.
#[derive(Debug)]
pub(crate) struct Reader {
    output: Arc<Output>,
    id: u64,
}

impl Reader {
    /// The next event; after `End` or `Cut` the same again.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            let mut more = std::pin::pin!(self.output.more.notified());
            more.as_mut().enable();
            if let Some(event) = self.poll() {
                return event;
            }
            more.await;
        }
    }

    fn poll(&self) -> Option<Event> {
        let mut state = self.output.state();
        let last = state.last();
        let position = state.readers.get(&self.id)?;
        if position.cut {
            return Some(Event::Cut);
        }
        let at = position.at;
        if at >= last {
            let (_, ending) = state.ending.as_ref()?;
            return Some(Event::End(Arc::clone(ending)));
        }
        let piece = state.piece(at)?;
        let limit = usize::try_from(last - at).unwrap_or(usize::MAX);
        let (channel, bytes) = (piece.channel, piece.slice(at, limit).to_vec());
        if let Some(position) = state.readers.get_mut(&self.id) {
            position.at = at + length(&bytes);
            position.moved = Instant::now();
        }
        drop(state);
        self.output.moved.notify_waiters();
        Some(Event::Data(channel, bytes))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.output.state().readers.remove(&self.id);
        self.output.moved.notify_waiters();
    }
}
