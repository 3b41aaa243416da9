// Plays the steps of an animation, or moves through them one by one.
import { useEffect, useState } from "preact/hooks";

const STEP_MS = 1100;

interface Props {
  step: number;
  last: number;
  go: (step: number) => void;
}
export function Player({ step, last, go }: Props) {
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return;
    const timer = setTimeout(() => {
      if (step >= last) setPlaying(false);
      else go(step + 1);
    }, STEP_MS);
    return () => clearTimeout(timer);
  }, [playing, step, last]);
  return (
    <div class="player">
      <button
        type="button"
        class="main"
        onClick={() => {
          if (!playing && step >= last) go(0);
          setPlaying(!playing);
        }}
      >
        {playing ? "Pause" : step >= last && last > 0 ? "Play again" : "Play"}
      </button>
      <button
        type="button"
        disabled={step <= 0}
        onClick={() => go(step - 1)}
        aria-label="Previous step"
      >
        ◂
      </button>
      <button
        type="button"
        disabled={step >= last}
        onClick={() => go(step + 1)}
        aria-label="Next step"
      >
        ▸
      </button>
      <input
        type="range"
        min={0}
        max={last}
        value={step}
        aria-label="Step"
        aria-valuetext={`step ${step} of ${last}`}
        onInput={(e) => go(Number(e.currentTarget.value))}
      />
    </div>
  );
}
