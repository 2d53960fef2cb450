//! Forked children that ask for an agent, children that will never have one, and processes whose
//! agent is to step aside for a moment.
//!
//! A child asks by a call in the shared memory (`Link`) of an ancestor. The child rings a doorbell
//! in its own address space. So the pager knows which child asks, whatever user, root or namespaces
//! it has. The fault thread adds the child to the candidates here. The listener then finds the
//! process. It takes one end of the child's pair of sockets out of the agent's descriptor table. It
//! waits for the hello at that end.

use crate::mm::link::JoinRequest;
use crate::pager::Pager;
use crate::processes::candidates::Candidate;
use crate::seam::Connection;
use crate::telemetry::unmanaged::Kind;
use crate::wait::limits::LOOK_PAUSE;
use crate::wait::patience::{Patience, Wait};
use rustix::io::Errno;
use std::io;

impl Candidate {
    /// Serves the request and answers. Returns the connection to the child, if it gets an agent.
    pub fn serve(&self, pager: &Pager) -> Option<Box<dyn Connection>> {
        let (answer, connection) = match self.request {
            JoinRequest::Join { thread, descriptor } => {
                match self.take_line(pager, thread, descriptor) {
                    Ok(connection) => (0, Some(connection)),
                    // This child is identified and has no such descriptor, so the call is another
                    // child's. That child is a candidate, too, and must not get an error. The call
                    // of an unidentified child may be its own, so it is answered.
                    Err(_) if !self.certain && self.mm.process().is_some() => return None,
                    // The child gets the error, and tries another way.
                    Err(error) => (number_of(&error), None),
                }
            }
            JoinRequest::StepAside => (self.step_aside(), None),
            // The child has its memory, and needs no agent (DETACH-2).
            JoinRequest::CannotJoin { .. } if pager.run.detach.is_on() => (0, None),
            JoinRequest::CannotJoin { reason } => {
                self.find(pager, None);
                let reason = io::Error::from_raw_os_error(reason);
                let name = self.mm.process().map_or_else(|| "?".to_owned(), |known| known.name());
                let name = format!("{name}: {reason}");
                pager.note_unmanaged(Kind::CannotJoin, self.mm.owner.pid(), &name);
                (0, None)
            }
        };
        self.line.answer(self.caller, answer);
        connection
    }

    /// Has the agent's thread step aside. Returns an errno if the process has other threads, which
    /// might see its descriptors, or if the thread cannot be told.
    fn step_aside(&self) -> u32 {
        const CALLER_AND_AGENT: usize = 2;
        let (mm, number) = (&self.mm, |error: Errno| error.raw_os_error().unsigned_abs());
        let (Some(link), Some(process)) = (mm.agent.link(), mm.process()) else {
            return number(Errno::SRCH);
        };
        if process.threads().len() != CALLER_AND_AGENT {
            return number(Errno::BUSY);
        }
        mm.agent.note_aside(process);
        if link.step_aside() { 0 } else { number(Errno::AGAIN) }
    }

    /// Looks for the process of the child.
    fn find(&self, pager: &Pager, thread: Option<u32>) {
        let wait = Wait::new(&pager.clock, Patience::Confirming);
        while !wait.is_over(&pager.clock) {
            if pager.find_process(&self.mm, thread).is_some() {
                return;
            }
            // The ring of the doorbell is a mapping change that may not be finished yet.
            pager.host.sleep(LOOK_PAUSE);
        }
    }

    fn take_line(
        &self,
        pager: &Pager,
        thread: u32,
        descriptor: u32,
    ) -> io::Result<Box<dyn Connection>> {
        self.find(pager, Some(thread));
        let process = self.mm.process().ok_or(Errno::SRCH)?;
        process.take_connection(thread, descriptor)
    }
}

fn number_of(error: &io::Error) -> u32 {
    Errno::from_io_error(error).unwrap_or(Errno::SRCH).raw_os_error().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use crate::mm::link::Link;
    use crate::quiet::{Quiet, line, pager, with_pool};
    use crate::wait::clock::Clock;
    use ebb_agent::protocol::{ASK_JOIN, CALL_FREE, CALL_MADE, State};
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Duration;

    /// Shows that the slot of a call becomes free with the child that made it. A child far from the
    /// limit may end while its agent calls. After 64 such children the others would wait 30 s.
    #[test]
    fn the_slot_of_a_call_becomes_free_with_the_child_that_made_it() {
        let (pager, (link, shared)) = (pager(), line());
        let call = &shared.0.calls[3];
        call.what.store(ASK_JOIN, SeqCst);
        let stage = || State(call.state.load(SeqCst)).stage();
        let make = || {
            let state = State(call.state.load(SeqCst)).taken().at(CALL_MADE);
            call.state.store(state.0, SeqCst);
            link.call(3).expect("a call").0
        };
        for answered in [false, true] {
            let (mm, caller) = (Arc::new(with_pool(Quiet::default())), make());
            mm.calls.note(&link, caller);
            if answered {
                link.answer(caller, 0);
            }
            pager.drop_mm(&mm);
            assert_eq!(stage(), CALL_FREE);
        }
        let (mm, caller) = (Arc::new(with_pool(Quiet::default())), make());
        mm.calls.note(&link, caller);
        make();
        pager.drop_mm(&mm);
        assert_eq!(stage(), CALL_MADE, "another child has taken the slot since");
    }

    /// Shows that the slot of a call that the pager never reads becomes free. A child that ends in
    /// the call takes the message with it.
    #[test]
    fn the_slot_of_a_call_that_is_never_read_becomes_free() {
        let (clock, (_, shared)) = (Clock::simulated(), line());
        let link = Link::new(shared.clone(), clock.clone());
        let word = &shared.0.calls[5].state;
        let made = State(word.load(SeqCst)).taken().at(CALL_MADE);
        word.store(made.0, SeqCst);
        link.sweep_slots();
        clock.stall(Duration::from_secs(60));
        link.sweep_slots();
        assert_eq!(word.load(SeqCst), made.0, "the host ran no thread");
        clock.advance(Duration::from_secs(3));
        link.sweep_slots();
        assert_eq!(State(word.load(SeqCst)).stage(), CALL_FREE);
    }
}
